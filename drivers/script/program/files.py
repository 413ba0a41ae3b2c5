"""What a scenario leaves behind in the working folder; never outside it, through symbolic links neither."""

from __future__ import annotations

import os

from .play import TurnOver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .play import Play
    from .scenario import Fields


def write_file(play: Play, fields: Fields) -> None:
    """Write a text, filled in. Ends the turn with an error if that cannot be done."""
    write(fields["path"], play.fill(fields["text"]))


def write(path: str, text: str) -> None:
    """Write a text file under the working folder. Raises TurnOver."""
    here = os.path.realpath(".")
    target = os.path.realpath(path)
    if os.path.commonpath((here, target)) != here:
        raise TurnOver("error", f"{path} leads out of the working folder")
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise TurnOver("error", f"{path} cannot be written: {error.strerror}") from error

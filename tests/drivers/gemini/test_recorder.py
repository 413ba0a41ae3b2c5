"""The recorder of transcripts keeps every line, also those that the codec reads together."""

from __future__ import annotations

from pathlib import Path

from drivers.contract.codec import Command, Launch
from tests.drivers.gemini.recordings import ALL, Player, codec_of
from tests.real.record_gemini import Recorder


def test_lines_that_were_read_at_once_are_recorded(tmp_path: Path) -> None:
    transcript = next(found for found in ALL if found.name == "plain")
    codec = codec_of(transcript.lines[0])
    recorder = Recorder(tmp_path)
    recorder.listen(Launch(Command(("gemini",), tmp_path, {}), codec))
    chunks = [line for line in transcript.lines if b"agent_message_chunk" in line][:4]
    first = transcript.lines.index(chunks[0])
    Player(codec).feed(transcript.lines[1:first])
    recorder.lines.clear()
    codec.receive_lines(chunks)
    assert len(chunks) == 4 and recorder.lines == chunks

"""The user's answers to the questions of a tool call, as the content of the client's reply has them. No state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from drivers.contract.messages import Content, text_of


def answers_by_question(content: Content, questions: Iterable[str]) -> dict[str, Any]:
    """Return the answers by the texts of their questions.

    Parameters:
        content: A JSON object with `answers` by the text of each question, or the text of one answer to each of `questions`.
    """
    text = text_of(content)
    try:
        answers = json.loads(text)["answers"]
        if not isinstance(answers, dict):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        return dict.fromkeys(questions, text)
    return answers

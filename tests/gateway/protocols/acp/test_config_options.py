"""The config options of what the agent's CLI lists: models with names, levels of effort, and the fast mode."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.claude.probe import efforts, fast_models, greeting, model_names, models
from drivers.contract.driver_info import ModelName, Option, Probe
from gateway.errors import BadRequest
from gateway.protocols.acp.modes_and_config_options import config_options, with_option
from gateway.sessions.settings import SessionSettings
from tests.support.daemon import RunningGateway

GREETING = (
    '{"type":"control_response","response":{"response":{"models":[{"value":"sonnet","displayName":"Sonnet","description":"Fast.","supportsFastMode":true,'
    '"supportedEffortLevels":["low","high"]},{"value":"haiku","supportedEffortLevels":["low","x_high"]}]}}}'
)


def test_claude_lists_names_and_efforts() -> None:
    answer = greeting([GREETING])
    assert models(answer) == ("sonnet", "haiku")
    assert model_names(answer) == (ModelName("sonnet", "Sonnet", "Fast."),)
    assert efforts(answer) == ("low", "high", "x_high")
    assert fast_models(answer) == ("sonnet",)


async def test_models_have_names_and_the_effort_its_levels(portico: RunningGateway) -> None:
    agent = portico.gateway.agents.get("echo")
    options = Option("model", "Model", ""), Option("effort", "Effort", "")
    agent.apply_probe(Probe(options=options, model_names=model_names(greeting([GREETING])), efforts=("low", "x_high")))
    listed = {option.id: option for option in config_options(agent, SessionSettings(), ("sonnet", "haiku"))}
    shown = {name: [(o.value, o.name, o.description) for o in listed[name].options] for name in ("model", "effort")}
    assert shown == {
        "model": [("default", "Default", None), ("sonnet", "Sonnet", "Fast."), ("haiku", "haiku", None)],
        "effort": [("default", "Default", None), ("low", "Low", None), ("x_high", "X high", None)],
    }
    assert (listed["effort"].category, listed["effort"].current_value) == ("thought_level", "default")
    settings = with_option(agent, SessionSettings(), "effort", "low", ())
    assert settings.options == {"effort": "low"}
    assert with_option(agent, settings, "effort", "default", ()).options == {"effort": ""}


FAST_MODES: list[Any] = [
    ("sonnet", ("sonnet",), True),
    ("haiku", ("sonnet",), False),
    # What the CLI does not list may have it: its own default, and other names of models.
    ("", ("sonnet",), True),
    ("claude-sonnet-9", ("sonnet",), True),
    ("sonnet", (), False),
]


async def test_the_fast_mode_is_offered_with_models_that_have_it(portico: RunningGateway) -> None:
    for model, listed_models, offered in FAST_MODES:
        agent, models = portico.gateway.agents.get("echo"), ("sonnet", "haiku")
        options = Option("model", "Model", ""), Option("fast", "Fast mode", "", default="off", choices=("off", "on"))
        agent.apply_probe(Probe(options=options, models=models, fast_models=listed_models))
        settings = SessionSettings(options={"model": model})
        listed = {option.id: option for option in config_options(agent, settings, models)}
        assert ("fast" in listed) == offered, (model, listed_models)
        if not offered:
            with pytest.raises(BadRequest, match="unknown option 'fast'"):
                with_option(agent, settings, "fast", "on", models)
            return
        shown = listed["fast"]
        assert (shown.category, shown.current_value, [o.name for o in shown.options]) == ("model_config", "off", ["Off", "On"]), (
            model,
            fast_models,
        )
        settings = with_option(agent, settings, "fast", "on", models)
        assert settings.options["fast"] == "on", (model, listed_models)
        # It is kept while another model is chosen.
        other = with_option(agent, settings, "model", "haiku", models)
        assert "fast" not in {option.id for option in config_options(agent, other, models)}, (model, listed_models)
        assert with_option(agent, other, "model", "sonnet", models).options["fast"] == "on", (model, listed_models)

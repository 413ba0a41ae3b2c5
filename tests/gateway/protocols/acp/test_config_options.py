"""The config options of what the agent's CLI lists: models with names, and levels of effort."""

from __future__ import annotations

from drivers.claude.probe import efforts, greeting, model_names, models
from drivers.contract.driver_info import ModelName, Option, Probe
from gateway.protocols.acp.modes_and_config_options import config_options, with_option
from gateway.sessions.settings import SessionSettings
from tests.daemon import RunningGateway

GREETING = (
    '{"type":"control_response","response":{"response":{"models":[{"value":"sonnet","displayName":"Sonnet","description":"Fast.",'
    '"supportedEffortLevels":["low","high"]},{"value":"haiku","supportedEffortLevels":["low","x_high"]}]}}}'
)


def test_claude_lists_names_and_efforts() -> None:
    answer = greeting([GREETING])
    assert models(answer) == ("sonnet", "haiku")
    assert model_names(answer) == (ModelName("sonnet", "Sonnet", "Fast."),)
    assert efforts(answer) == ("low", "high", "x_high")


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

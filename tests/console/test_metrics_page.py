"""The metrics page: charts and tables of what /metrics says, and its parser, rates and quantiles."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from prometheus_client.parser import text_string_to_metric_families

from tests.console.checked_pages import Windows
from tests.console.console_daemon import ConsoleDaemon
from tests.console.named_key import open_with_named_key


@pytest.fixture
def metrics(windows: Windows, daemon: ConsoleDaemon) -> Page:
    session = daemon.new_session([{"text": "hello"}])
    daemon.send(session, "begin")
    return windows.open("/console/metrics", viewport={"width": 1440, "height": 900})


def in_page(page: Page, code: str, argument: Any = None) -> Any:
    """Run code with the modules of the page as `m`."""
    modules = "Object.assign({}, ...await Promise.all(['prometheus', 'metrics-history', 'chart-scale', 'format']"
    imports = f"{modules}.map((name) => import(`/console/assets/js/pages/${{name}}.js`))))"
    return page.evaluate(f"async (argument) => {{ const m = {imports}; {code} }}", argument)


def test_the_charts_show_the_values_of_the_daemon(metrics: Page, daemon: ConsoleDaemon) -> None:
    live = re.search(r"^portico_live_agents (\d+)", daemon.api.get("/metrics").text, re.MULTILINE)
    assert live
    chart = metrics.locator("figure", has_text="Live agents")
    expect(chart.locator("strong")).to_have_text(live[1])
    expect(chart.get_by_role("img", name=re.compile(f"Live agents. {live[1]}"))).to_be_visible()
    expect(metrics.locator("figure", has_text="Memory of the daemon").locator("strong")).to_have_text(
        re.compile(r"^\d+(\.\d)? MiB$")
    )
    # Two scrapes make a rate, and a line.
    expect(metrics.locator("figure", has_text="HTTP answers").locator("strong")).to_have_text(re.compile(r"^[\d.]+/s$"))
    expect(chart.locator("path.chart-line")).to_have_attribute("d", re.compile("M.*L"))


def test_a_turn_appears_in_rates_and_latency(metrics: Page, daemon: ConsoleDaemon) -> None:
    rate = metrics.locator("figure", has_text="Events").locator("strong").first
    expect(rate).to_have_text("0/s")
    session = daemon.new_session([{"events": {"count": 5000}}, {"stop": {"reason": "error", "message": "overloaded"}}])
    daemon.api.post(f"/aap/v3/sessions/{session}/turns", json={"messages": [{"role": "user", "content": "flood"}]})
    expect(rate).to_have_text(re.compile(r"^[\d,]{3,}/s$"))
    errors = metrics.locator("figure", has_text="Errors")
    expect(errors.locator(".chart-value", has_text="failed turns").locator("strong")).not_to_have_text("0/min")
    latency = metrics.locator("figure", has_text="First event")
    expect(latency.locator(".chart-value", has_text="median").locator("strong")).to_have_text(re.compile(r"\d (ms|µs|s)$"))


def test_tables_have_the_same_values_for_screen_readers(metrics: Page) -> None:
    metrics.get_by_role("button", name="Show as tables").click()
    table = metrics.get_by_role("region", name="Values, newest first").get_by_role("table")
    expect(table.get_by_role("columnheader", name="Live agents")).to_be_visible()
    expect(table.get_by_role("columnheader", name="Errors: crashes")).to_be_visible()
    expect(table.get_by_role("row")).not_to_have_count(1)
    totals = metrics.get_by_role("region", name="Totals by agent")
    expect(totals.get_by_role("row", name=re.compile("^script"))).to_be_visible()
    expect(
        metrics.get_by_role("region", name="First event: quantiles by agent").get_by_role("row", name=re.compile("^script"))
    ).to_be_visible()


def test_pause_reads_nothing(metrics: Page) -> None:
    expect(metrics.locator("figure").first).to_be_visible()
    metrics.get_by_role("button", name="Pause").click()
    requests: list[str] = []
    metrics.on("request", lambda request: requests.append(request.url))
    metrics.wait_for_timeout(3000)
    assert not [url for url in requests if url.endswith("/metrics")]
    with metrics.expect_request("**/metrics"):
        metrics.get_by_role("button", name="Continue").click()


def test_lines_differ_without_colour(metrics: Page) -> None:
    lines = metrics.locator("figure", has_text="Errors").locator(".chart-line")
    expect(lines).to_have_count(3)
    dashes = lines.evaluate_all("(paths) => paths.map((path) => getComputedStyle(path).strokeDasharray)")
    assert len(set(dashes)) == 3


def test_a_restart_of_the_daemon_is_marked(windows: Windows, metrics: Page, daemon: ConsoleDaemon) -> None:
    windows.expect("ERR_|net::|503|401")
    expect(metrics.locator("figure", has_text="Live agents").locator("strong")).to_have_text(re.compile(r"\d"))
    daemon.kill()
    expect(metrics.get_by_text("The metrics cannot be loaded")).to_be_visible()
    daemon.start()
    expect(metrics.get_by_text("The metrics cannot be loaded")).to_be_hidden(timeout=60_000)
    expect(metrics.locator(".chart-mark").first).to_be_attached()


def test_a_named_key_sees_the_metrics(windows: Windows, daemon: ConsoleDaemon) -> None:
    page = open_with_named_key(windows, daemon, "/console/metrics")
    expect(page.locator("figure", has_text="Live agents").locator("strong")).to_have_text(re.compile(r"\d"))


def test_the_parser_reads_what_prometheus_reads(metrics: Page, daemon: ConsoleDaemon) -> None:
    text = daemon.api.get("/metrics").text + 'odd{a="x\\"y\\\\z\\n",b="{1,2}"} 1e3 1700000000\nnot a metric line\ninf +Inf\n'
    found = in_page(
        metrics,
        "return [...m.parseMetrics(argument)].flatMap(([name, list]) => list.map((s) => [name, s.labels, String(s.value)]))",
        text,
    )
    known = daemon.api.get("/metrics").text
    expected = {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(known)
        for sample in family.samples
    }
    names = {(name, tuple(sorted(labels.items()))) for name, labels, _ in found}
    assert expected <= names
    assert ["odd", {"a": 'x"y\\z\n', "b": "{1,2}"}, "1000"] in found
    assert ["inf", {}, "Infinity"] in found
    assert not any(name.startswith("not") for name, _, _ in found)


@pytest.mark.parametrize(
    ("counts", "fraction", "value"),
    [
        ([0, 0, 0], 0.5, None),
        ([10, 10, 10], 0.5, 0.05),
        ([0, 10, 10], 0.5, 0.55),
        ([5, 10, 10], 0.75, 0.55),
        ([0, 0, 10], 0.5, 1),
        ([10, 10, 20], 0.99, 1),
    ],
)
def test_quantiles(metrics: Page, counts: list[int], fraction: float, value: float | None) -> None:
    buckets = [{"bound": bound, "count": count} for bound, count in zip((0.1, 1), counts, strict=False)]
    code = "return m.quantile([...argument.buckets, {bound: Infinity, count: argument.last}], argument.fraction)"
    found = in_page(metrics, code, {"buckets": buckets, "last": counts[-1], "fraction": fraction})
    assert found == (None if value is None else pytest.approx(value))


def test_rates_survive_a_restart_and_a_pause(metrics: Page) -> None:
    code = """
        const points = [];
        for (const [at, started, events] of argument) {
            const text = `process_start_time_seconds ${started}\\nportico_events_total{agent="a",kind="b"} ${events}`;
            points.push(m.nextPoint(points, m.parseMetrics(text), at * 1000));
        }
        return points.map((point) => [point.values.events, point.restarted]);
    """
    found = in_page(metrics, code, [[0, 1, 10], [2, 1, 30], [4, 9, 5], [6, 9, 5], [100, 9, 50]])
    assert found == [[None, False], [10, False], [None, True], [0, False], [None, False]]


@pytest.mark.parametrize(("value", "ceiling"), [(0, 1), (0.3, 0.5), (3, 5), (10, 10), (101, 200), (0.00012, 0.0002)])
def test_axes_end_at_round_numbers(metrics: Page, value: float, ceiling: float) -> None:
    assert in_page(metrics, "return m.niceCeiling(argument)", value) == ceiling


def test_missing_values_interrupt_a_line(metrics: Page) -> None:
    code = "return m.linePath([1, null, 2, 3], [0, 1, 2, 3], { from: 0, to: 3, top: 5 }).line"
    assert in_page(metrics, code) == "M0 80L2 80M400 60L600 40"

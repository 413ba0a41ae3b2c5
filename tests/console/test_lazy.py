"""Parts of the page that are loaded when they are first shown."""

from __future__ import annotations

from playwright.sync_api import Page

RACE = """async () => {
  const { lazy } = await import("/console/assets/js/lazy.js");
  const { html, render } = await import("/console/assets/js/preact.js");
  let arrive;
  const loaded = new Promise((done) => (arrive = done));
  const Part = lazy(() => loaded, "Part", { waiting: null });
  const [one, other] = [document.createElement("div"), document.createElement("div")];
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  render(html`<${Part} />`, one);
  await frame();
  await frame();
  render(html`<${Part} />`, other);
  // Between the rendering of the other one and its effect, which follows the next frame.
  arrive({ Part: () => html`<p>there</p>` });
  await loaded;
  for (let n = 0; n < 5; n += 1) await frame();
  return [one.textContent, other.textContent];
}"""


def test_a_module_that_comes_between_a_rendering_and_its_effect(page: Page) -> None:
    assert page.evaluate(RACE) == ["there", "there"]

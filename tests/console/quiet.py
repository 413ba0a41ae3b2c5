"""When a page has come to rest."""

from __future__ import annotations

from playwright.sync_api import Page

QUIET = """() => new Promise((done) => {
  const begun = performance.now();
  let last = begun;
  const observer = new MutationObserver(() => (last = performance.now()));
  observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  const ends = (animation) => animation.effect.getComputedTiming().endTime < 5000;
  const moves = () => document.getAnimations().some((one) => one.playState === "running" && ends(one));
  const look = () => {
    const now = performance.now();
    if (moves()) last = now;
    if (now - last < 250 && now - begun < 5000) return requestAnimationFrame(look);
    observer.disconnect();
    done();
  };
  requestAnimationFrame(look);
})"""
"""Nothing has been changed or moved for 250 ms. A page in which something always does, such as a clock, is given 5 s."""


def settle(page: Page) -> None:
    """Wait until nothing is being loaded or moved."""
    page.wait_for_load_state("load")
    page.locator(".page-loading").first.wait_for(state="detached", timeout=60_000)
    page.evaluate(QUIET)

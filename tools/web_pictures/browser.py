"""Headless Chromium, through selenium."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

PROGRAM, DRIVER = "chromium", "chromedriver"
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def why_not() -> str:
    """Return why there is no browser here; empty if there is one."""
    missing = [name for name in (PROGRAM, DRIVER) if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)} (Debian: chromium chromium-driver)" if missing else ""


class Browser:
    """One window. Its methods block, so an event loop calls them in a thread."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page."""
        self.driver.get(url)

    def wait(self, script: str, seconds: float = 15.0) -> Any:
        """Wait until a JavaScript expression is true, and return it."""
        return WebDriverWait(self.driver, seconds, 0.1).until(
            lambda driver: driver.execute_script(f"return {script}"), f"never true: {script}"
        )

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        return self.driver.execute_script(f"return {script}")

    def text(self, selector: str) -> str:
        """Return the text of the first element that a CSS selector finds, in one step: the page may change it between
        two."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click on the first element that a CSS selector finds."""
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def log_on(self, url: str, user: str, password: str) -> None:
        """Open the page, fill in the form and send it."""
        self.open(url)
        self.wait("!document.getElementById('login').hidden")
        for name, value in (("user", user), ("password", password)):
            field = self.driver.find_element(By.NAME, name)
            field.clear()
            field.send_keys(value)
        self.click("#login button")

    def visit(self, section: str) -> None:
        """Go to a section of the page."""
        self.click(f"nav a[href='#{section}']")
        self.wait(f"!document.getElementById('{section}').hidden")

    def complaints(self) -> list[str]:
        """Return what the browser has written to its console since the last call: errors, and violations of the CSP."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, path: str) -> None:
        """Write what the window shows to a PNG file."""
        self.driver.save_screenshot(path)


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 860, dark: bool = False) -> Iterator[Browser]:
    """A window of that size, with a profile of its own."""
    options = Options()
    options.binary_location = shutil.which(PROGRAM) or PROGRAM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for option in (*OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(option)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which(DRIVER)))
        try:
            scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            yield Browser(driver)
        finally:
            driver.quit()

# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, and what tests of the console ask it for."""

import os
import shutil
import subprocess
import tempfile

try:
    from selenium import webdriver
    from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = None

from terrace_harness import wait_until

CHROMIUM, DRIVER = "/usr/bin/chromium", shutil.which("chromedriver") or "/usr/bin/chromedriver"
# Of every document, from its first script on.
WATCH = """window.violations = [];
document.addEventListener('securitypolicyviolation', e => window.violations.push(e.violatedDirective + ' ' + e.blockedURI));
"""


def lacking():
    """Why there is no browser; "" where there is one."""
    if webdriver is None:
        return "not on this machine: python3-selenium"
    return "" if shutil.which("chromium") and shutil.which("chromedriver") else "not on this machine: chromium, chromedriver"


def lacking_for_certificates():
    """Why no certificate can be put into the browser; "" where one can."""
    return "" if shutil.which("certutil") and shutil.which("pk12util") else "not on this machine: libnss3-tools"


def import_certificate(home, ca, pkcs12, password):
    """What one does in Chromium's settings: a user's certificate, and a CA that is trusted for web sites. `home`: of that user."""
    store = home / ".pki/nssdb"
    store.mkdir(parents=True)
    for words in (("certutil", "-N", "--empty-password"), ("pk12util", "-i", pkcs12, "-W", password, "-K", ""),
                  ("certutil", "-A", "-n", "the pool's CA", "-t", "C,,", "-i", ca)):
        subprocess.run([*map(str, words), "-d", f"sql:{store}"], check=True, capture_output=True, timeout=60)


class Browser:
    def __init__(self, width=1280, height=900, scale=1, home=None, certificate_for=None):
        """`home`: with the certificates of import_certificate; `certificate_for`: the site that is shown one without a question."""
        self.profile = tempfile.TemporaryDirectory(prefix="terrace-chromium-")
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
                     "--no-first-run", "--disable-background-networking", "--no-proxy-server", "--hide-scrollbars",
                     f"--force-device-scale-factor={scale}", f"--user-data-dir={self.profile.name}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if certificate_for is not None:
            chosen = {f"{certificate_for},*": {"setting": {"filters": [{}]}}}
            options.add_experimental_option("prefs", {"profile": {"content_settings": {"exceptions": {"auto_select_certificate": chosen}}}})
        environment = dict(os.environ) if home is None else {**os.environ, "HOME": str(home), "XDG_DATA_HOME": ""}
        self.driver = webdriver.Chrome(service=Service(DRIVER, env=environment), options=options)
        self.driver.set_script_timeout(60)
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        self._first = width, height, scale
        self.size(*self._first)

    def close(self):
        self.driver.quit()
        self.profile.cleanup()

    def size(self, width, height, scale=1):
        """Of the page itself, whatever the least size of a window is."""
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500})

    def scheme(self, name):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def leave(self):
        """The page as it was at first: none, with nothing said."""
        self.open("about:blank")
        self.size(*self._first)
        self.scheme("")
        self.complaints()

    def open(self, address):
        self.driver.get(address)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self):
        return self.js("return document.body.innerText")

    def wait(self, condition, what):
        def holds():
            try:
                return condition()
            except (StaleElementReferenceException, WebDriverException):
                return None
        try:
            return wait_until(holds, 60, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the page says:\n{self.text()[:2000]}") from None

    def wait_text(self, part):
        self.wait(lambda: part in self.text(), f"the page to say {part!r}")

    def wait_no_text(self, part):
        self.wait(lambda: part not in self.text(), f"the page to say {part!r} no more")

    def find(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def press(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self):
        """What has the keyboard's focus: its text, and whether one sees that it has."""
        return self.js("""const e = document.activeElement, s = getComputedStyle(e);
            return {tag: e.localName, id: e.id, text: (e.innerText || e.getAttribute('aria-label') || '').trim(),
                    seen: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0}""")

    def colours_of(self, canvas):
        """{"#rrggbb": pixels} of a canvas of the page."""
        return self.js("""const c = document.querySelector(arguments[0]);
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, n = {};
            for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) {
              const k = (d[i] << 16) | (d[i + 1] << 8) | d[i + 2]; n[k] = (n[k] || 0) + 1; }
            const out = {}; for (const k in n) if (n[k] > 20) out['#' + Number(k).toString(16).padStart(6, '0')] = n[k];
            return out;""", canvas)

    def busy_ms(self):
        """What the page's own thread has computed so far, whatever else the machine did meanwhile."""
        self.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return 1e3 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def complaints(self):
        """Errors and violations of the policy since the last question, but for those of what tests themselves do."""
        logged = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        logged = [text for text in logged if "willReadFrequently" not in text]
        return logged + list(self.js("const v = window.violations; window.violations = []; return v"))

    def picture(self, path):
        self.driver.save_screenshot(str(path))

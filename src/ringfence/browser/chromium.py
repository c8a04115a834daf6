"""Which Chromium shows the pages, and the command line that leaves it nothing but the page and the proxy.

Playwright's own flags are not used: they are chosen for tests of one's own pages (pop-ups allowed, floods allowed).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from ringfence.errors import Unavailable
from ringfence.isolation.linux.egress_door import PORT

# The programs themselves: the scripts before them source what they find in /etc, load extensions and add keys.
_PROGRAMS: Final = (
    "/usr/lib/chromium/chromium",
    "/usr/lib64/chromium-browser/chromium-browser",
    "/usr/lib64/chromium/chromium",
)
FIX: Final = "apt-get install chromium, and pip install 'ringfence[browser]'"
HOME: Final = "/home/browser"
ENVIRONMENT: Final = {
    "HOME": HOME,
    "PATH": "/nowhere",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "XDG_RUNTIME_DIR": "/tmp",
    "DBUS_SESSION_BUS_ADDRESS": "disabled:",
    "DBUS_SYSTEM_BUS_ADDRESS": "disabled:",
}

_FEATURES_OFF: Final = (
    # what speaks to the network by itself
    *("OptimizationHints", "NetworkTimeServiceQuerying", "MediaRouter", "DialMediaRouteProvider", "Translate"),
    *("InterestFeedContentSuggestions", "AutofillServerCommunication", "CertificateTransparencyComponentUpdater"),
    *("PreconnectToSearch", "AimEnabled", "DnsOverHttps", "AsyncDns", "PrivacySandboxSettings4", "LensOverlay"),
    *("Reporting", "NetworkErrorLogging", "ComponentUpdater", "SegmentationPlatform", "OnDeviceModel"),
    *("WebUSB", "WebBluetooth", "FedCm", "Prerender2", "NavigationPredictor", "LoadingPredictorPrefetch"),
    # what would make the page another one than was asked for
    *("HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable"),
    # what the driver cannot do with
    *("DestroyProfileOnBrowserClose", "AvoidUnnecessaryBeforeUnloadCheckSync", "PaintHolding"),
    *("AvoidCorsURLLoaderRestartOnRedirect", "BackForwardCache"),
)
_FLAGS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-startup-window",
    f"--user-data-dir={HOME}/profile",
    # the only way out, for loopback names too: else the browser would connect to its own empty loopback
    f"--proxy-server=http://127.0.0.1:{PORT}",
    "--proxy-bypass-list=<-loopback>",
    # names are the proxy's business; whatever would still ask for one gets no answer
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-background-networking",
    "--disable-component-update",
    "--component-updater=disable-pings,url-source=about:blank",
    "--disable-component-extensions-with-background-pages",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-field-trial-config",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-notifications",
    "--disable-print-preview",
    "--disable-speech-api",
    "--disable-search-engine-choice-screen",
    "--disable-back-forward-cache",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--disable-background-timer-throttling",
    "--disable-hang-monitor",
    "--disable-prompt-on-repost",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    "--no-service-autorun",
    "--password-store=basic",
    "--use-mock-keychain",
    "--mute-audio",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
    # software only: no device of the host is in the box, and a GPU process would only be more to attack
    "--disable-gpu",
    "--disable-3d-apis",
    # a renderer that outgrows this ends with an error of its own, before the whole box meets its limit
    "--js-flags=--max-old-space-size=384",
    "--renderer-process-limit=4",
    f"--disable-features={','.join(_FEATURES_OFF)}",
    "--enable-features=SkipListAccountsWithoutGaiaCookies,AvoidAutoTriggerListAccountsOnStale",
)

POLICY_PATH: Final = "etc/chromium/policies/managed/ringfence.json"
# What an administrator's policy refuses, no driver, page or preference turns on again.
_POLICY: Final = {
    "URLBlocklist": ["*"],
    "URLAllowlist": ["http://*", "https://*", "chrome://sandbox", "about:blank", "about:srcdoc"],
    "DownloadRestrictions": 3,
    "AllowFileSelectionDialogs": False,
    "ExtensionInstallBlocklist": ["*"],
    "BlockExternalExtensions": True,
    "DefaultPopupsSetting": 2,
    "DefaultGeolocationSetting": 2,
    "DefaultNotificationsSetting": 2,
    "DefaultClipboardSetting": 2,
    "DefaultSensorsSetting": 2,
    "DefaultSerialGuardSetting": 2,
    "DefaultWebBluetoothGuardSetting": 2,
    "DefaultWebHidGuardSetting": 2,
    "DefaultWebUsbGuardSetting": 2,
    "DefaultFileSystemReadGuardSetting": 2,
    "DefaultFileSystemWriteGuardSetting": 2,
    "DefaultLocalFontsSetting": 2,
    "VideoCaptureAllowed": False,
    "AudioCaptureAllowed": False,
    "ScreenCaptureAllowed": False,
    "PasswordManagerEnabled": False,
    "AutofillAddressEnabled": False,
    "AutofillCreditCardEnabled": False,
    "PaymentMethodQueryEnabled": False,
    "BrowserSignin": 0,
    "SyncDisabled": True,
    "ComponentUpdatesEnabled": False,
    "MetricsReportingEnabled": False,
    "SafeBrowsingProtectionLevel": 0,
    "SearchSuggestEnabled": False,
    "TranslateEnabled": False,
    "SpellCheckServiceEnabled": False,
    "NetworkPredictionOptions": 2,
    "QuicAllowed": False,
    "BuiltInDnsClientEnabled": False,
    "EncryptedClientHelloEnabled": False,  # the proxy holds the name in the hello against the one it was asked for
    "DnsOverHttpsMode": "off",
    "WebRtcIPHandling": "disable_non_proxied_udp",
    "BackgroundModeEnabled": False,
    "PrintingEnabled": False,
    "EnableMediaRouter": False,
    "PromptForDownloadLocation": False,
}


def find_chromium() -> str:
    """Return the system's Chromium.

    Raises:
        Unavailable: There is none (`browser_backend_missing`).
    """
    for program in _PROGRAMS:
        if Path(program).is_file():
            return program
    raise Unavailable("no Chromium is installed here", reason="browser_backend_missing", fix=FIX)


def arguments(width: int, height: int) -> list[str]:
    """Return the flags of a browser with windows of this size."""
    return [*_FLAGS, f"--window-size={width},{height}"]


def policy() -> str:
    """Return the administrator's policy that lies in the box."""
    return json.dumps(_POLICY)

"""Whether what containers start from is recent and was held against what is known of its packages."""

from __future__ import annotations

from ringfence.doctor.facts import Facts
from ringfence.doctor.finding import Finding, Health
from ringfence.images.age import OLD_DAYS

_BUILD_AGAIN = "ringfence image build --fresh && ringfence image scan"


def sandbox_image(facts: Facts) -> tuple[Finding, ...]:
    """Return the two findings about the sandbox image of this user."""
    return _scanned(facts), _age(facts)


def _scanned(facts: Facts) -> Finding:
    check, title, image = "S1-139", "image scanned", facts.image
    if image is None:
        return Finding(check, title, Health.UNKNOWN, "no sandbox image was built here")
    if image.scanner is None:
        return Finding(
            check,
            title,
            Health.WARN,
            f"{image.name} was never scanned",
            "nobody knows which weaknesses its packages are known for",
            "ringfence image scan   (with trivy or grype installed)",
        )
    found = f"{image.scanner}, {image.scan_age_days} days ago: {image.serious} high or critical"
    if image.serious or image.scan_age_days > OLD_DAYS:
        means = "a guest may use a known weakness of a program in its image; the box around it holds all the same"
        return Finding(check, title, Health.WARN, found, means, _BUILD_AGAIN)
    return Finding(check, title, Health.OK, found)


def _age(facts: Facts) -> Finding:
    check, title, image = "S1-152", "image age", facts.image
    if image is None:
        return Finding(check, title, Health.UNKNOWN, "no sandbox image was built here")
    found = f"{image.name} ({image.sha256[:12]}) is {image.age_days} days old"
    if image.age_days > OLD_DAYS:
        means = "Debian's security updates since then are not in it"
        return Finding(check, title, Health.WARN, found, means, _BUILD_AGAIN)
    return Finding(check, title, Health.OK, found)

"""What the doctor says about the image that containers start from."""

from __future__ import annotations

import pytest

from ringfence.doctor.checks_image import sandbox_image
from ringfence.doctor.facts import Box, Facts, Image
from ringfence.doctor.finding import Health


def told(image: Image | None) -> dict[str, Health]:
    return {found.id: found.status for found in sandbox_image(Facts(box=Box(available=True), image=image))}


@pytest.mark.parametrize(
    ("image", "scanned", "age"),
    [
        (None, Health.UNKNOWN, Health.UNKNOWN),
        (Image("i", "0" * 64, 3), Health.WARN, Health.OK),
        (Image("i", "0" * 64, 30, "trivy"), Health.OK, Health.OK),
        (Image("i", "0" * 64, 31, "trivy"), Health.OK, Health.WARN),
        (Image("i", "0" * 64, 3, "grype", serious=1), Health.WARN, Health.OK),
        (Image("i", "0" * 64, 3, "grype", scan_age_days=31), Health.WARN, Health.OK),
    ],
)
def test_an_image_is_to_be_recent_and_scanned(image: Image | None, scanned: Health, age: Health) -> None:
    assert told(image) == {"S1-139": scanned, "S1-152": age}


def test_what_is_wrong_with_an_image_says_how_to_get_a_better_one() -> None:
    stale = Image("i", "0" * 64, 99, "trivy", 99, 7)
    for found in sandbox_image(Facts(box=Box(available=True), image=stale)):
        assert found.fix is not None
        assert found.fix.startswith("ringfence image build --fresh")

"""The manifests of 001 §7.2, held against the schemas of Kubernetes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

MANIFESTS = Path(__file__).resolve().parents[3] / "deploy/kubernetes"
DOCUMENTS: list[dict[str, Any]] = [
    document
    for name in ("ringfence.yaml", "microvm/runtime-class.yaml")
    for document in yaml.safe_load_all((MANIFESTS / name).read_text())
]


def of(kind: str) -> dict[str, Any]:
    return next(document for document in DOCUMENTS if document["kind"] == kind)


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"])
def test_every_document_is_one_that_kubernetes_takes(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_key_would_be_found() -> None:
    wrong = {**of("Service"), "spec": {"selectr": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_manager_is_as_001_says() -> None:
    deployment = of("Deployment")["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["replicas"] == 3
    assert pod["serviceAccountName"] == "sandbox-sa"
    security = container["securityContext"]
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert container["resources"] == {
        "limits": {"memory": "1Gi", "cpu": "1"},
        "requests": {"memory": "512Mi", "cpu": "500m"},
    }


def test_a_pod_has_no_key_to_the_cluster_and_no_root_of_the_node() -> None:
    pod = of("Deployment")["spec"]["template"]["spec"]
    assert of("ServiceAccount")["automountServiceAccountToken"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["hostUsers"] is False
    assert not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_the_network_policy_names_who_may_call_and_where_it_may_go() -> None:
    policy = of("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule.get("from") for rule in policy["ingress"])
    assert all(rule.get("to") for rule in policy["egress"])


def test_what_the_kustomizations_name_is_there() -> None:
    for file in MANIFESTS.rglob("kustomization.yaml"):
        for name in yaml.safe_load(file.read_text())["resources"]:
            assert (file.parent / name).exists(), (file, name)

"""The papers a decision was made from: with them it can be made again, by anybody, and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringfence.authority.request_form import request_document
from ringfence.capability.canonical import canonical, digest_of

if TYPE_CHECKING:
    from ringfence.authority.profile import Profile, Sources

_MOST_KNOWN = 256


class Document(NamedTuple):
    """One paper, known by the hash of its very bytes."""

    kind: str
    digest: str
    body: str


class Papers(NamedTuple):
    """The documents of one profile, and how its records refer to them."""

    references: dict[str, str]
    documents: tuple[Document, ...]


def papers_of(profile: Profile) -> Papers:
    """Return what `profile` was made of; one that was made by nobody has no papers."""
    sources = profile.sources
    if sources is None:
        return _NONE
    known = _known.get(id(sources))
    if known is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        # the sources are held with their papers, so that no other object takes their identity
        known = _known[id(sources)] = (sources, _papers(sources))
    return known[1]


def _papers(sources: Sources) -> Papers:
    policy = sources.policy
    documents = [Document("policy", policy.policy_version_hash, policy.text.decode())]
    request = request_document(sources.request)
    if request is not None:
        documents.append(Document("request", *request))
    if sources.grant is not None:
        content = canonical(sources.grant.to_json())
        documents.append(Document("grant", digest_of(content), content.decode()))
    if sources.manifest is not None:
        text = sources.manifest.text
        documents.append(Document("manifest", digest_of(text), text.decode()))
    return Papers({document.kind: document.digest for document in documents}, tuple(documents))


_NONE = Papers({}, ())
_known: dict[int, tuple[Sources, Papers]] = {}

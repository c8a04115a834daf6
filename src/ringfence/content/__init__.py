"""Content that evidence only has digests of, kept encrypted and apart from it, where somebody switched that on."""

from ringfence.content.store import ContentStore

__all__ = ["ContentStore"]

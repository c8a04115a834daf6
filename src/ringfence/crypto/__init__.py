"""Signatures and encryption from the OpenSSL this interpreter has anyway: no dependency, no algorithm of our own."""

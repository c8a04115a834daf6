"""The service as AIO's clients expect it, under `/v1`: their routes, their envelope, and nothing that decides."""

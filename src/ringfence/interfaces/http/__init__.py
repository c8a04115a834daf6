"""The service over HTTP: routes that parse, ask the manager and render; the law is behind them, not in them."""

"""Object stores over HTTP: one transport of our own (`http`, `retry`, `wire`, `poll`), and a dialect per cloud."""

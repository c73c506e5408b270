from __future__ import annotations

hip: str | None = None

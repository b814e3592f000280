"""One page that shows an open store as it works: watermarks, lag, writers, segments, records, health, cost.

`serve(store)` is for a service that embeds the log; `logstore ui` and the broker's metrics port serve the same page.
Read-only: GET alone, and nothing in here can append, delete or fence. It binds to loopback, and anywhere else only with
a token. The page is one file without anything from elsewhere, and its policy forbids the browser to ask anybody else.
`view` says what there is to see, from memory, `refresher` asks the store in the background, `port` speaks HTTP,
`page.html` is the page.

May import: `store`, `metrics`, `cost` and what lies below. Called by users, `logstore ui` and the broker; `import logstore`
does not import it.
"""

from __future__ import annotations

from logstore.ui.port import Served, serve

__all__ = ["Served", "serve"]

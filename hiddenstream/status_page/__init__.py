"""What a run is at, for people: the facts, the page in the browser, and the lines in a terminal.

    plan, ledger, queue, workers' reports ─▶ RunStatus ─▶ /status.json ─▶ page.html
                                                       └▶ lines of a terminal

It reads and shows. Nothing of it decides anything, and a run goes on without it.
"""

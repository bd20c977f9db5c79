"""The comparison of two runs at `/compare`.

Imports `leakline.analysis`, `charts`, `web.rendering`, `web.run_page`, which reads both runs. Start reading in
`view.py`.
"""

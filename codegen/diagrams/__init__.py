"""Drawings of the documentation, as SVG that stands in the page: nothing is loaded, and colours follow the
theme.

`svg` puts shapes together, `ruler` draws bytes, `states` a state machine, `sequence` who says what to whom.
"""

"""The colours of the night for the house's figures: one SVG follows the page's mode by itself."""

import re

__all__ = ["by_night"]

DARK = {  # fills and strokes by day and by night
    "fill: #ffffff": "fill: #14181e",
    "stroke: #ffffff": "stroke: #14181e",
    "fill: #262626": "fill: #e0e0e0",
    "stroke: #262626": "stroke: #e0e0e0",
    "stroke: #cccccc": "stroke: #48566b",
    "fill: #595959": "fill: #9aa4b2",
    "fill: #d9d9d9": "fill: #2f3a47",
    "stroke: #595959": "stroke: #9aa4b2",
    "stroke: #000000": "stroke: #e0e0e0",
    "stroke: #1a1a1a": "stroke: #e0e0e0",
    "stroke: #4c4c4c": "stroke: #9aa4b2",
    "stroke: #440154": "stroke: #a86bc4",
    "stroke: #482878": "stroke: #8f86cf",
    "fill: #332288": "fill: #8f7ee0",
    "stroke: #332288": "stroke: #8f7ee0",
    "fill: #882255": "fill: #c9608f",
    "stroke: #882255": "stroke: #c9608f",
}


def by_night(svg: str) -> str:
    """Return an SVG with its own style for dark pages."""
    rules = " ".join(f'[style*="{day}"]{{{night}!important}}' for day, night in DARK.items())
    rules += ' [id^="text_"] [style*="fill: #ffffff"]{fill:#ffffff!important}'  # on colours
    style = f"<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>"
    return re.sub(r"(<svg[^>]*>)", rf"\1{style}", svg, count=1)

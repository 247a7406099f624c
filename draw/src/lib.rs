//! Drawings as SVG: axes, dots, lines, bars, areas and text, in light and dark.
#![forbid(unsafe_code)]

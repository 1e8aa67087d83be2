"""Charts as SVG, and the HTML around them, for pages that load nothing, such as that of `webtext report`.

`markup` builds HTML and SVG, escapes its arguments, and has the style sheets; `drawing` makes charts of numbers;
`numbers` writes numbers as people read them. Nothing but the standard library is needed.
"""

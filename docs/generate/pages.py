"""The generated reference pages."""

from docs.generate import (
    algorithms,
    commands,
    errors,
    events,
    live_texts,
    metrics,
    openmetrics,
    plugins,
    recipe_options,
    rest_api,
)

PAGES = (
    algorithms.PAGE,
    commands.PAGE,
    errors.PAGE,
    events.PAGE,
    live_texts.PAGE,
    metrics.PAGE,
    openmetrics.PAGE,
    plugins.PAGE,
    recipe_options.PAGE,
    rest_api.PAGE,
)

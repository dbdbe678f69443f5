"""Wrong PromQL in other people's dashboards and rules, found by the dialect and the syntax tree."""

from runbooks.lint.report import lint_files, lint_text

__all__ = ["lint_files", "lint_text"]

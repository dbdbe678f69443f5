"""One rule per cause: each looks at the whole scene and says where it suspects its cause, with evidence for and against.

A rule knows only its own cause and what would merely be a symptom of it (`explains`); weighing them is `diagnosis`.
"""

# SPDX-License-Identifier: Apache-2.0
"""The command line: a verb a file, imported when it is asked for.

`main` holds the registry of verbs and turns failures into exit codes; `common` holds what all
verbs share. Nothing here imports torch before a verb needs it.
"""

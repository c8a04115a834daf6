"""What the command that looks at web pages says of itself."""

from __future__ import annotations

OF_THE_WEB = {
    "browse": """\
ringfence browse URL [OPTIONS]

Open a web page in a Chromium in a box of its own, as far as the policy lets it, and print what is to be read there.
It only reads: no forms, no downloads, no scripts of yours. Whatever it prints is a stranger's word.

  --extract WHAT      text (default), links, tree (the accessibility tree) or none; all but text is JSON
  --selector CSS      only in what this finds first
  --field NAME=CSS    the texts of what this selector finds, as JSON under NAME; repeatable; instead of --extract
  --screenshot FILE   save a PNG of the page, or of what --selector finds; FILE must not be there yet
  --full-page         all of the page, not only what a screen shows
  --project ID        whose page it is, and in whose artifacts pictures are kept (default browse)
  --policy FILE       browse under this policy; without one no host is granted, and nothing is reached
  --role R            one of the policy's agent roles
  --timeout S         wall-clock seconds of each step
  --home DIR          where state and evidence are kept, instead of $RINGFENCE_HOME
  --json              one JSON object with everything, and nothing else

Exit codes are those of run. Needs: pip install 'ringfence[browser]', and a Chromium.

  ringfence browse https://www.python.org/ --policy web.yaml --extract links --screenshot page.png
""",
}

"""Whether the service of this container answers: exit code 0, or an error that says why not.

    answers.py [/readyz]      by the settings of the environment: TMS__SERVER__PORT, TMS__TLS__CERT

* The certificate is not checked: it names the service as others reach it, not this container.
"""

import os
import ssl
import sys
import urllib.request

path = sys.argv[1] if len(sys.argv) > 1 else "/readyz"
scheme = "https" if os.environ.get("TMS__TLS__CERT") else "http"
url = f"{scheme}://127.0.0.1:{os.environ.get('TMS__SERVER__PORT', '7070')}{path}"
context = ssl._create_unverified_context() if scheme == "https" else None
urllib.request.urlopen(url, timeout=2, context=context)

"""Check that the service of this container answers: exit code 0, or an error with the reason.

    answers.py [/readyz]      reads TMS__SERVER__PORT and TMS__TLS__CERT from the environment

* The certificate is not verified: it has the service's public name, not this container's.
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

"""Pages of the console as HTTP sees them, without a browser: what is in the HTML, links, forms."""

import http.client
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import urlencode, urljoin, urlsplit

VOID = frozenset(("area", "br", "col", "hr", "img", "input", "link", "meta"))
PATIENCE_S = 30.0


class PageForm(NamedTuple):
    """A form of a page: its method, the address that it is sent to, and its fields as they are
    filled in."""

    method: str
    action: str
    fields: dict[str, str]


class ReadPage(HTMLParser):
    """A page as it was answered: `status`, `headers` by their names in lower case, `html`, its
    `text`, the addresses of its `links`, its `forms`, and the `commands` that do the same."""

    def __init__(self, status: int, headers: dict[str, str], html: str) -> None:
        super().__init__()
        self.status = status
        self.headers = headers
        self.html = html
        self.links: dict[str, str] = {}  # by their texts
        self.forms: list[PageForm] = []
        self.commands: list[str] = []  # `tms …` and `curl …`
        self._said: list[str] = []
        self._link: tuple[str, list[str]] | None = None
        self._area = ""
        self._is_command = False
        self._is_first = False
        self.feed(html)
        self.text = " ".join(" ".join(self._said).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "pre":
            self.commands.append("")
            self._is_command = True
        elif tag == "a":
            self._link = values.get("href", ""), []
        elif tag == "form":
            method = values.get("method", "get").upper()
            self.forms.append(PageForm(method, values.get("action", ""), {}))
        elif self.forms and tag in ("input", "select", "textarea") and "name" in values:
            checked = values.get("type") not in ("checkbox", "radio") or "checked" in values
            if checked and "disabled" not in values:
                self.forms[-1].fields[values["name"]] = values.get("value", "")
            self._area = values["name"] if tag == "textarea" else ""
            self._is_first = True  # of the options, or of the lines
        elif self.forms and tag == "option" and self.forms[-1].fields:
            if self._is_first or "selected" in values:
                self.forms[-1].fields[next(reversed(self.forms[-1].fields))] = values["value"]
            self._is_first = False

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._link is not None:
            self.links[" ".join("".join(self._link[1]).split())] = self._link[0]
            self._link = None
        elif tag == "textarea":
            self._area = ""
        elif tag == "pre":
            self._is_command = False

    def handle_data(self, data: str) -> None:
        self._said.append(data)
        if self._link is not None:
            self._link[1].append(data)
        if self._is_command:
            self.commands[-1] += data
        if self._area:
            text = data.removeprefix("\n") if self._is_first else data  # as a browser reads it
            self.forms[-1].fields[self._area] += text
            self._is_first = False

    def form(self, action: str = "") -> PageForm:
        """The only form that is posted and whose address ends so; without an address, the only one
        beside that which signs out."""
        posted = [one for one in self.forms if one.method == "POST"]
        others = [one for one in posted if action or not one.action.endswith("/sign-out")]
        (found,) = [one for one in others if one.action.endswith(action)]
        return found


class PageReader:
    """A browser without a face: it keeps cookies, follows answers that lead on, and sends forms.
    `cookies` are those that it begins with."""

    def __init__(self, url: str, **cookies: str) -> None:
        parts = urlsplit(url)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._address = parts.hostname, parts.port
        self.cookies = dict(cookies)
        self.at = "/console/"  # the address of the page that it shows

    def get(self, target: str, **headers: str) -> ReadPage:
        """The page at an address, after following."""
        page = self.ask("GET", target, headers=headers)
        hops = 0
        while page.status == 303 and hops < 5:
            page = self.ask("GET", page.headers["location"], headers=headers)
            hops += 1
        return page

    def send(self, form: PageForm, **fields: str) -> ReadPage:
        """The page to which a form leads, with some fields filled in."""
        target = urljoin(self.at, form.action) if form.action else self.at
        page = self.post(target, {**form.fields, **fields})
        return self.get(page.headers["location"]) if page.status == 303 else page

    def post(
        self, target: str, fields: dict[str, str], headers: dict[str, str] | None = None
    ) -> ReadPage:
        """The answer to a form as a page of the console would send it."""
        own = {
            "Origin": self.origin,
            "Content-Type": "application/x-www-form-urlencoded",
            **(headers or {}),
        }
        return self.ask("POST", target, urlencode(fields), own)

    def ask(
        self,
        method: str,
        target: str,
        body: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> ReadPage:
        """The answer to one request."""
        connection = http.client.HTTPConnection(*self._address, timeout=PATIENCE_S)
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {**({"Cookie": cookie} if cookie else {}), **(headers or {})}
        try:
            connection.request(method, target, body, sent)
            answer = connection.getresponse()
            html = answer.read().decode()
        finally:
            connection.close()
        for line in answer.headers.get_all("set-cookie") or ():
            name, _, rest = line.partition("=")
            value, *more = rest.split("; ")
            self.cookies[name] = value
            if "Max-Age=0" in more:
                del self.cookies[name]
        if method == "GET":
            self.at = target
        fields = {name.lower(): value for name, value in answer.headers.items()}
        return ReadPage(answer.status, fields, html)

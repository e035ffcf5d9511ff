package wheel

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestSettings(t *testing.T) {
	write := func(t *testing.T, path, text string) string {
		t.Helper()
		must.Write(t, path, text)
		return path
	}
	dir := t.TempDir()
	for _, name := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_PROXY"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("XDG_CONFIG_DIRS", filepath.Join(dir, "etc"))
	t.Setenv("VIRTUAL_ENV", filepath.Join(dir, "venv"))
	t.Setenv("PIP_CONFIG_FILE", "")
	indexes := func(want ...string) {
		t.Helper()
		s, err := readSettings()
		expect.True(t, err == nil && cmp.Equal(s.indexes, want), "got %q, %v, want %q", s.indexes, err, want)
	}
	write(t, filepath.Join(dir, "etc", "pip", "pip.conf"), "[global]\nindex-url = https://global/simple/\nproxy: proxy:3128\n")
	indexes("https://global/simple")
	write(t, filepath.Join(dir, ".config", "pip", "pip.conf"), "# mine\n[global]\nindex_url=https://user/simple\n")
	indexes("https://user/simple")
	write(t, filepath.Join(dir, "venv", "pip.conf"), "[global]\nindex-url = https://venv/simple\n[install]\nextra-index-url =\n    https://a/simple\n    https://b/simple\n")
	indexes("https://venv/simple", "https://a/simple", "https://b/simple")
	t.Setenv("PIP_CONFIG_FILE", write(t, filepath.Join(dir, "own.conf"), "[install]\nindex-url = https://own/simple\n"))
	t.Setenv("PIP_EXTRA_INDEX_URL", "https://c/simple")
	indexes("https://own/simple", "https://c/simple")
	t.Setenv("PIP_INDEX_URL", "https://variable/simple")
	indexes("https://variable/simple", "https://c/simple")
	if s, err := readSettings(); err != nil || s.proxy.String() != "http://proxy:3128" {
		t.Errorf("proxy %v, %v", s.proxy, err)
	}
	t.Setenv("PIP_NO_INDEX", "true")
	indexes()
	t.Setenv("PIP_NO_INDEX", "")
	t.Setenv("PIP_INDEX_URL", "user:secret@host/simple")
	_, err := readSettings()
	expect.True(t, err != nil && strings.Contains(err.Error(), "index-url") && !strings.Contains(err.Error(), "secret"), "got %v", err)
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	t.Setenv("PIP_INDEX_URL", "")
	t.Setenv("PIP_EXTRA_INDEX_URL", "")
	indexes(publicIndex)
	t.Setenv("PIP_CONFIG_FILE", write(t, filepath.Join(dir, "bad.conf"), "[global]\nindex-url\n"))
	expect.Failure(readSettings())(t, "bad.conf:2: ")
}

func TestNetrc(t *testing.T) {
	got := parseNetrc([]byte(`# logins
machine Example.org
	login ann password #not-a-comment # a comment
machine macro login x password y
macdef init
machine evil login no password no

machine example.org login other password other
machine q login "a\"b" password "p"
default login guest password guest
`))
	want := map[string]login{
		"example.org": {"ann", "#not-a-comment"}, "macro": {"x", "y"}, "q": {`a"b`, "p"}, "": {"guest", "guest"},
	}
	expect.Equal(t, want, got, cmp.AllowUnexported(login{}))
}

func TestHTMLPage(t *testing.T) {
	base := must.Get(url.Parse("https://index/simple/p/"))(t)
	got := parseHTML(base, []byte(`<base href="https://files/x/"><a href="a.whl?x=1&amp;y=2#sha256=AB">a</a>
<a data-x=">" href='/b%2B1.whl'>b</a><A HREF=c.tar.gz>c</A><a name="d">d</a><a href="../">up</a><abbr href="e.whl">`))
	want := map[string]link{
		"a.whl": {"https://files/x/a.whl?x=1&y=2", "AB"}, "b+1.whl": {"https://files/b%2B1.whl", ""}, "c.tar.gz": {"https://files/x/c.tar.gz", ""},
	}
	expect.Equal(t, want, got, cmp.AllowUnexported(link{}))
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`<a href="x.whl#sha256=1">x</a>`))
	f.Add([]byte(`{"files":[{"filename":"x.whl","url":"../x.whl","hashes":{"sha256":"1"}}]}`))
	f.Add([]byte(`<base href="//h/"><a data-x='>' href=y.zip>`))
	base := must.Get(url.Parse("https://index/simple/p/"))(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		page := parseHTML(base, data)
		for name, found := range page {
			expect.True(t, !strings.Contains(name, "/"), "a file is called %q", name)
			must.Get(url.Parse(found.address))(t)
		}
		files, err := parseJSON(base, data)
		expect.True(t, err != nil || files != nil, "neither files nor an error")
	})
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte("[global]\nindex-url = https://a\n"))
	f.Add([]byte("[install]\nextra_index_url:\n  a\n\n  b\n; c\n[x]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		values := map[string]string{}
		if err := parseConfig(data, values); err != nil {
			return
		}
		for key, value := range values {
			expect.True(t, strings.Contains(key, ".") && strings.TrimSpace(value) == value, "%q = %q", key, value)
		}
	})
}

func FuzzNetrc(f *testing.F) {
	f.Add([]byte("machine a login b password c\ndefault login d\nmacdef x\ny\n\nmachine z"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for host := range parseNetrc(data) {
			expect.Same(t, strings.ToLower(host), host, "host")
		}
	})
}

package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

const (
	commit1 = "1111111111111111111111111111111111111111"
	commit2 = "2222222222222222222222222222222222222222"
)

// fakeHub is a Hub, and the store to which it redirects readers of large files, on two local ports.
type fakeHub struct {
	hub, store *httptest.Server

	mu      sync.Mutex
	refs    map[string]string            // "models/org/name@main" to a commit
	files   map[string]map[string]string // commit to contents by name; names ending in .safetensors or .parquet are large
	log     []string                     // requests as METHOD path, those to the store as STORE name [range]
	leaks   int                          // requests to the store that had a token
	answer  func(w http.ResponseWriter, r *http.Request) bool
	deliver func(w http.ResponseWriter, r *http.Request, content string) bool
}

func newFake(t *testing.T) *fakeHub {
	t.Helper()
	h := &fakeHub{refs: map[string]string{}, files: map[string]map[string]string{}}
	h.hub = httptest.NewServer(http.HandlerFunc(h.serveHub))
	h.store = httptest.NewServer(http.HandlerFunc(h.serveStore))
	t.Cleanup(h.hub.Close)
	t.Cleanup(h.store.Close)
	for _, variable := range []string{
		"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN",
		"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT",
	} {
		t.Setenv(variable, "")
	}
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("RLTRAIN_CACHE", t.TempDir())
	t.Setenv("HF_ENDPOINT", h.hub.URL)
	t.Chdir(t.TempDir())
	return h
}

func large(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".parquet") || strings.HasSuffix(name, ".bin")
}

func sha256Of(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }

func gitOf(content string) string {
	return fmt.Sprintf("%x", sha1.Sum([]byte(fmt.Sprintf("blob %d\x00%s", len(content), content))))
}

// taken returns the log since the last call.
func (h *fakeHub) taken() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.log
	h.log = nil
	return log
}

func (h *fakeHub) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	w.WriteHeader(status)
}

func (h *fakeHub) serveHub(w http.ResponseWriter, r *http.Request) {
	h.note("%s %s", r.Method, r.URL.EscapedPath())
	if h.answer != nil && h.answer(w, r) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	if rest, ok := strings.CutPrefix(path, "api/"); ok {
		id, revision, _ := strings.Cut(rest, "/revision/")
		revision, _ = url.PathUnescape(revision)
		commit := h.refs[id+"@"+revision]
		if h.files[revision] != nil {
			commit = revision
		}
		switch {
		case commit != "":
			h.list(w, commit)
		case h.refs[id+"@main"] == "":
			fail(w, http.StatusUnauthorized, "RepoNotFound")
		default:
			fail(w, http.StatusNotFound, "RevisionNotFound")
		}
		return
	}
	_, rest, _ := strings.Cut(path, "/resolve/")
	commit, name, _ := strings.Cut(rest, "/")
	name, _ = url.PathUnescape(name)
	content, ok := h.files[commit][name]
	w.Header().Set("X-Repo-Commit", commit)
	switch {
	case !ok:
		fail(w, http.StatusNotFound, "EntryNotFound")
	case large(name):
		w.Header().Set("X-Linked-Etag", `"`+sha256Of(content)+`"`)
		w.Header().Set("X-Linked-Size", fmt.Sprint(len(content)))
		w.Header().Set("ETag", `"of-the-redirect"`)
		http.Redirect(w, r, h.store.URL+"/"+commit+"/"+name+"?signature=secret", http.StatusFound)
	default:
		w.Header().Set("ETag", `W/"`+gitOf(content)+`"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
	}
}

func (h *fakeHub) list(w http.ResponseWriter, commit string) {
	type lfs struct {
		SHA256 string `json:"sha256"`
	}
	type sibling struct {
		Name string `json:"rfilename"`
		Size int    `json:"size"`
		Git  string `json:"blobId"`
		LFS  *lfs   `json:"lfs,omitempty"`
	}
	var siblings []sibling
	for name, content := range h.files[commit] {
		s := sibling{Name: name, Size: len(content), Git: gitOf(content)}
		if large(name) {
			s.Git, s.LFS = gitOf("pointer to "+content), &lfs{sha256Of(content)}
		}
		siblings = append(siblings, s)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"id": "org/name", "sha": commit, "siblings": siblings, "gated": false})
}

func (h *fakeHub) serveStore(w http.ResponseWriter, r *http.Request) {
	commit, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	note := "STORE " + name
	for _, header := range []string{"Range", "If-Range"} {
		if value := r.Header.Get(header); value != "" {
			note += " " + value
		}
	}
	h.note("%s", note)
	h.mu.Lock()
	content := h.files[commit][name]
	if r.Header.Get("Authorization") != "" {
		h.leaks++
	}
	h.mu.Unlock()
	w.Header().Set("ETag", `"of-the-store"`)
	if h.deliver != nil && h.deliver(w, r, content) {
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader([]byte(content)))
}

// cut sends the first n bytes of the requested range and closes the connection.
func cut(w http.ResponseWriter, content string, n int) {
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	_, _ = w.Write([]byte(content[:n]))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// publish adds files of a model to the Hub.
func (h *fakeHub) publish(commit string, files map[string]string, refs ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files[commit] = files
	for _, ref := range refs {
		h.refs[ref] = commit
	}
}

// tester is a client that does not wait and records its warnings.
type tester struct {
	Client
	mu          sync.Mutex
	pauses      []time.Duration
	warnings    []string
	done, total int64
}

func newTester() *tester {
	c := &tester{}
	c.sleep = func(ctx context.Context, d time.Duration) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pauses = append(c.pauses, d)
		return ctx.Err()
	}
	c.Warn = func(message string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.warnings = append(c.warnings, message)
	}
	c.Progress = func(_ string, done, total int64) { c.done, c.total = done, total }
	return c
}

func (c *tester) get(t *testing.T, model string) Model {
	t.Helper()
	return must.Get(c.Model(t.Context(), model, Weights))(t)
}

// refuses expects a one-line error containing every part of want.
func (c *tester) refuses(t *testing.T, model string, want ...string) {
	t.Helper()
	_, err := c.Model(t.Context(), model, Weights)
	wantError(t, model, err, want...)
}

func wantError(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want %q", what, want)
		return
	}
	expect.Contains(t, err.Error(), want...)
	expect.True(t, !strings.ContainsAny(err.Error(), "\n") && !strings.Contains(err.Error(), "hf_secret") && !strings.Contains(err.Error(), "signature"),
		"%s: %q has several lines or contains a secret", what, err)
}

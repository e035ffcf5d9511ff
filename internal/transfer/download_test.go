package transfer

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestPartialFileWithoutAChecksum: what an earlier process left is not continued, since nothing could tell whether it is right.
func TestPartialFileWithoutAChecksum(t *testing.T) {
	const whole = "the whole file"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "file", time.Time{}, bytes.NewReader([]byte(whole)))
	}))
	defer server.Close()
	path := must.File(t, "file.part", "another")
	var received int64
	d := Download{
		Client: New(server.URL, server.Client()), Address: server.URL + "/file", Path: path, Size: int64(len(whole)), Timeout: time.Minute,
		Advance: func(n int64) { received += n },
	}
	must.Do(t, d.Receive(t.Context()))
	got := must.Read(t, path)
	expect.True(t, got == whole && received == int64(len(whole)), "%q after %d bytes, want %q", got, received, whole)
}

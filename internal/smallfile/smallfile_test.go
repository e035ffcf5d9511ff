package smallfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/smallfile"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	expect.Failure(smallfile.Read(path))(t, path)
	must.Do(t, os.WriteFile(path, []byte("{}"), 0o600))
	data, err := smallfile.Read(path)
	expect.True(t, err == nil && string(data) == "{}", "%q, error %v", data, err)
	for size, fits := range map[int64]bool{smallfile.Limit: true, smallfile.Limit + 1: false} {
		must.Do(t, os.Truncate(path, size))
		data, err := smallfile.Read(path)
		expect.True(t, (err == nil) == fits && (!fits || int64(len(data)) == size), "%d bytes: %d read, error %v", size, len(data), err)
	}
}

func TestOpenNeverBlocks(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	for _, path := range []string{pipe, "/dev/zero", t.TempDir()} {
		if f, err := smallfile.Open(path); err == nil {
			f.Close()
			t.Errorf("%s was opened", path)
		} else if !strings.Contains(err.Error(), path) {
			t.Error(err)
		}
	}
}

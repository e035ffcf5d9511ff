package dataset

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/must"
)

// TestUnpackBound: a file that unpacks to very much more than its size is refused, and the reader hears that it takes long.
func TestUnpackBound(t *testing.T) {
	defer func(most int64) { maxUnpacked = most }(maxUnpacked)
	maxUnpacked = 16 << 20
	said := ""
	reader := Reader{Progress: func(line string) { said = line }}
	write := func(name string, row string, rows int) string {
		t.Helper()
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		for range rows {
			must.Get(z.Write([]byte(row)))(t)
		}
		must.Do(t, z.Close())
		path := filepath.Join(t.TempDir(), name)
		must.Do(t, os.WriteFile(path, packed.Bytes(), 0o600))
		return path
	}
	count := func(path string) (n int, err error) {
		for _, err = range reader.Records(path) {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	long := `{"text":"` + strings.Repeat("x", 1<<20) + `"}` + "\n"
	if n, err := count(write("bomb.jsonl.gz", long, 300)); err == nil || !strings.Contains(err.Error(), "unpack it yourself") || n > 17 {
		t.Errorf("%d rows, %v", n, err)
	}
	if n, err := count(write("small.jsonl.gz", long, 12)); err != nil || n != 12 {
		t.Errorf("below the bound: %d rows, %v", n, err)
	}
	maxUnpacked = 1 << 40
	if n, err := count(write("large.jsonl.gz", long, 260)); err != nil || n != 260 || !strings.Contains(said, "256 MiB") {
		t.Errorf("%d rows, %v, progress %q", n, err, said)
	}
}

package dataset

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestRecordBound: the bound is on a record, not on a file.
func TestRecordBound(t *testing.T) {
	defer func(most int64) { maxRecord = most }(maxRecord)
	maxRecord = 256 << 10
	field := strings.Repeat("x", 64<<10)
	for name, text := range map[string][2]string{
		"a.csv":   {"text,label\n", field + ",1\n"},
		"a.jsonl": {"", `{"text":"` + field + `","label":"1"}` + "\n"},
		"a.json":  {"[", `{"text":"` + field + `","label":"1"},`},
	} {
		path := filepath.Join(t.TempDir(), name)
		count := func(rows int, row string) (n int, err error) {
			body := text[0] + strings.Repeat(row, rows)
			if strings.HasSuffix(name, ".json") {
				body = strings.TrimSuffix(body, ",") + "]"
			}
			must.Do(t, os.WriteFile(path, []byte(body), 0o600))
			for _, err := range (Reader{}).Records(path) {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		}
		if n, err := count(20, text[1]); n != 20 || err != nil {
			t.Errorf("%s: %d of 20 rows, %v", name, n, err)
		}
		_, err := count(1, strings.Replace(text[1], field, strings.Repeat(field, 20), 1))
		expect.True(t, err != nil && strings.Contains(err.Error(), "a record is larger than"), "%s: a long record: %v", name, err)
	}
}

package dataset

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// A folder of save_to_disk has the saved splits and rows.
func TestSaveToDisk(t *testing.T) {
	parts := must.Get(Find("", filepath.Join("testdata", "saved")))(t)
	d, err := Reader{}.Divide(parts)
	if err != nil || !d.Given {
		t.Fatal(d.Given, err)
	}
	want := all(t, filepath.Join("testdata", "messages.jsonl"))
	var train, held []Object
	for r, err := range d.Train {
		must.Do(t, err)
		train = append(train, r.Fields)
	}
	for r, err := range d.Validation {
		must.Do(t, err)
		held = append(held, r.Fields)
	}
	if diff := cmp.Diff(want, train) + cmp.Diff(want[:1], held); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	alone, err := Find("", filepath.Join("testdata", "saved_alone"))
	if err != nil || len(alone) != 1 || alone[0].Split != "train" || len(alone[0].Files) != 3 {
		t.Fatal(alone, err)
	}
	var ids []int64
	for _, fields := range all(t, alone[0].Files...) {
		id, _ := fields.Get("id")
		ids = append(ids, id.(int64))
	}
	expect.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6}, ids)
}

func TestArrowRefused(t *testing.T) {
	saved := must.Get(os.ReadFile(filepath.Join("testdata", "saved", "train", "data-00000-of-00001.arrow")))(t)
	for name, content := range map[string][]byte{"empty": nil, "text": []byte("hello, this is no Arrow"), "short": saved[:len(saved)/2], "zeros": make([]byte, 4096)} {
		path := filepath.Join(t.TempDir(), "rows.arrow")
		must.Do(t, os.WriteFile(path, content, 0o644))
		var failed error
		for _, err := range Records(path) {
			failed = err
		}
		if name == "zeros" && failed == nil {
			continue // a stream that ends at once
		}
		if failed == nil || !strings.Contains(failed.Error(), "rows.arrow: not an Arrow stream, or damaged") || strings.Contains(failed.Error(), "\n") {
			t.Errorf("%s: %v", name, failed)
		}
	}
	expect.Failure(Reader{}.Rows([]Part{{"train", []string{filepath.Join("testdata", "saved_alone", "data-00000-of-00003.arrow")}}}, Columns{Label: "nope"}, &Faults{}))(t, `no column "nope"; columns are`)
}

// Any bytes give records or a one-line error.
func FuzzArrow(f *testing.F) {
	saved := must.Get(os.ReadFile(filepath.Join("testdata", "saved", "train", "data-00000-of-00001.arrow")))(f)
	f.Add(saved)
	f.Fuzz(func(t *testing.T, data []byte) {
		n := 0
		err := readArrowFrom(bytes.NewReader(data), int64(len(data)), "x.arrow", nil, func(Record) error {
			if n++; n > 10000 {
				return errStop
			}
			return nil
		})
		expect.True(t, err == nil || !strings.Contains(err.Error(), "\n"), "%q", err)
	})
}

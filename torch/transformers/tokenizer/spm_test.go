package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestSPMRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ file, want string }{
		"no file":          {"", "tokenizer.json"},
		"not a message":    {"\x0a\xff", "spm.model: "},
		"no piece":         {"\x10\x01", "spm.model: no pieces"},
		"a score above 0":  {"\x0a\x08\x0a\x01a\x15\x00\x00\x80\x3f", `piece "a" has the score 1`},
		"no unknown piece": {"\x0a\x03\x0a\x01a", "no piece [UNK]"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			if tt.file != "" {
				files["spm.model"] = tt.file
			}
			expect.Failure(Load(must.Folder(t, files)))(t, tt.want)
		})
	}
}

func FuzzParseSPM(f *testing.F) {
	f.Add(must.Get(os.ReadFile(filepath.Join("testdata", "spm", "spm.model")))(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		pieces, err := parseSPM(data)
		if err != nil {
			return
		}
		text, err := debertaJSON(pieces, true)
		expect.True(t, err != nil || json.Valid(text), "not JSON: %.200s", text)
	})
}

package torch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestHeaderIsSmallAndDocumented reads the C header: few functions, each with a comment and an entry in the list of
// symbols looked up at load time.
func TestHeaderIsSmallAndDocumented(t *testing.T) {
	read := func(path ...string) string {
		data := must.Get(os.ReadFile(filepath.Join(path...)))(t)
		return string(data)
	}
	header, loader := read("..", "csrc", "include", "rltrain.h"), read("loader.c")
	declared := regexp.MustCompile(`(?m)^[a-z_0-9]+[ *a-z_0-9]*?(rlt_[a-z_]+)\([^;]*\);`).FindAllStringSubmatchIndex(header, -1)
	n := len(declared)
	expect.True(t, n >= 20 && n <= 40, "%d functions, want 20 to 40", n)
	for _, at := range declared {
		name := header[at[2]:at[3]]
		expect.True(t, strings.HasSuffix(strings.TrimRight(header[:at[0]], "\n"), "*/"), "%s has no comment before it", name)
		expect.True(t, strings.Contains(loader, "X("+name+")"), "%s is not in the list of loader.c", name)
	}
}

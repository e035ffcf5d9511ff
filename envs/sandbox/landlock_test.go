package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestOldLandlock truncates a readable file, which old Landlock versions cannot forbid.
func TestOldLandlock(t *testing.T) {
	m := means{Tier: Landlock, Landlock: 2, Seccomp: true}
	if err := m.try(); err != nil {
		t.Skip(err)
	}
	s := newSandbox(m)
	t.Cleanup(func() { _ = s.Close() })
	python, err := s.Find(t.Context(), Python, "")
	if err != nil {
		t.Skip(err)
	}
	name := filepath.Join(t.TempDir(), "readable.txt")
	must.Do(t, os.WriteFile(name, []byte("full"), 0o644))
	python.Read = append(python.Read, name)
	program := common + "p = '" + name + "'\nprint(open(p).read())\nno(os.truncate, p, 0); no(os.open, p, os.O_TRUNC); no(os.open, p, os.O_RDWR); no(call, 2, p.encode(), 0x200, 0); no(call, 85, p.encode(), 0o644); no(call, 437, -100, p.encode(), b'\\0\\2' + bytes(22), 24)"
	o, err := s.RunText(t.Context(), quick(), python, program, nil)
	if err != nil || !strings.HasPrefix(o.Stdout, "full\n") || strings.Contains(o.Stdout, "ESCAPED") || o.Status != OK {
		t.Errorf("%+v, %v", o, err)
	}
	data, err := os.ReadFile(name)
	expect.True(t, err == nil && string(data) == "full", "it holds %q, %v", data, err)
}

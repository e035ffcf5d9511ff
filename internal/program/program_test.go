package program

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestWords(t *testing.T) {
	for command, want := range map[string][]string{
		"./judge":                      {"./judge"},
		"  python3\tjudge.py\n -v ":    {"python3", "judge.py", "-v"},
		`a 'b c' "d e"`:                {"a", "b c", "d e"},
		`a b'c'"d"e ''`:                {"a", "bcde", ""},
		`a "say \"no\" \\ \n" 'x\y'`:   {"a", `say "no" \ \n`, `x\y`},
		`my\ judge \' "it's" '"' "\$"`: {"my judge", "'", "it's", `"`, `\$`},
		"sh -c 'echo $HOME; a | b'":    {"sh", "-c", "echo $HOME; a | b"},
	} {
		got, err := Words(command)
		expect.True(t, err == nil, "%s: %v", command, err)
		expect.Equal(t, want, got, command)
	}
}

func TestLastLine(t *testing.T) {
	var l lastLine
	for _, step := range []struct{ write, want string }{
		{"", ""}, {"one", "one"}, {" more\n", "one more"}, {"\n  \n", "one more"}, {"a\nb\r\nc", "c"}, {"\n" + strings.Repeat("d", 1000), strings.Repeat("d", 512)},
	} {
		n, err := l.Write([]byte(step.write))
		expect.True(t, n == len(step.write) && err == nil, "%q: wrote %d, %v", step.write, n, err)
		expect.Same(t, step.want, l.String(), "after %q", step.write)
	}
}

const keeperName = "keeper" // a process of the test that asks a program and is killed

func TestMain(m *testing.M) {
	if os.Args[0] == keeperName {
		p, err := New(os.Args[1], time.Minute, nil)
		if err == nil {
			_, errs := ask(p)
			err = errs[0]
		}
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
		}
		_, _ = os.Stdout.WriteString("asked\n")
		select {}
	}
	os.Exit(m.Run())
}

// ask asks one question; the answer is the id.
func ask(p *Program) ([]int, []error) {
	return Ask(context.Background(), p, 1, func(_ int, id uint64) any { return map[string]uint64{"id": id} }, func(line []byte) (a Answer[int], err error) {
		err = json.Unmarshal(line, &a)
		return a, err
	})
}

// escaping is a program with a child in another session and one in another session whose parent has ended. Both, and the
// program, write their number into dir and live on.
func escaping(t *testing.T, dir string) string {
	t.Helper()
	script := filepath.Join(dir, "program.sh")
	text := `cd ` + dir + `
setsid sh -c 'echo $$ > child; exec sleep 1000' &
setsid sh -c 'sh -c "echo \$\$ > orphan; exec sleep 1000" & exit' &
echo $$ > program
while [ ! -s child ] || [ ! -s orphan ]; do sleep .01; done
sed -u 's/.*:\([0-9]*\).*/{"ID":\1}/'
`
	must.Do(t, os.WriteFile(script, []byte(text), 0o600))
	return "sh " + script
}

// gone waits until the processes have ended.
func gone(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"program", "child", "orphan"} {
		text := must.Get(os.ReadFile(filepath.Join(dir, name)))(t)
		pid := must.Get(strconv.Atoi(strings.TrimSpace(string(text))))(t)
		deadline := time.Now().Add(20 * time.Second)
		for alive(pid) {
			expect.Require(t, !time.Now().After(deadline), "the %s lives on", name)
			time.Sleep(time.Millisecond)
		}
	}
}

// alive reports whether a process runs, that is, is more than an entry that nobody has waited for.
func alive(pid int) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return !errors.Is(err, fs.ErrNotExist) && !strings.Contains(string(status), "State:\tZ")
}

// TestProgramsEndWithTheirChildren: no process of a program stays when it is closed, or when its user is killed.
func TestProgramsEndWithTheirChildren(t *testing.T) {
	dir := t.TempDir()
	p := must.Get(New(escaping(t, dir), time.Minute, nil))(t)
	_, errs := ask(p)
	expect.Require(t, errs[0] == nil, "%v", errs[0])
	p.Close()
	gone(t, dir)

	dir = t.TempDir()
	r, w, err := os.Pipe()
	must.Do(t, err)
	keeper := must.Get(os.StartProcess("/proc/self/exe", []string{keeperName, escaping(t, dir)}, &os.ProcAttr{Files: []*os.File{nil, w, os.Stderr}}))(t)
	_ = w.Close()
	must.Get(r.Read(make([]byte, 1)))(t)
	must.Do(t, keeper.Signal(syscall.SIGKILL))
	_, _ = keeper.Wait()
	gone(t, dir)
}

// TestExitStatus: how a program ended is told through its guard.
func TestExitStatus(t *testing.T) {
	for command, want := range map[string]string{
		"sh -c 'exit 7'": "exit status 7", "sh -c 'kill -9 $$'": "signal: killed", "sh -c 'kill -TERM $$'": "signal: terminated", "true": "exit status 0",
	} {
		p := must.Get(New(command, time.Minute, nil))(t)
		_, errs := ask(p)
		expect.True(t, errs[0] != nil && strings.HasSuffix(errs[0].Error(), want), "%s: %v, want %s", command, errs[0], want)
		p.Close()
	}
}

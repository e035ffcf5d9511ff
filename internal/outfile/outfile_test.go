package outfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// names are the entries of a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	all := []string{}
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

func TestWriteRegular(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	must.Do(t, Write(path, []byte("one"), 0o600))
	must.Do(t, os.Chmod(path, 0o640))
	before := must.Open(os.Open(path))(t)
	must.Do(t, Write(path, []byte("two"), 0o600))
	old, err := io.ReadAll(before)
	info, statErr := os.Stat(path)
	expect.True(t, err == nil && statErr == nil && string(old) == "one" && must.Read(t, path) == "two" && info.Mode().Perm() == 0o640,
		"who had it open reads %q, then it is %q with %v; %v, %v", old, must.Read(t, path), info.Mode(), err, statErr)
	expect.Equal(t, []string{"out"}, names(t, dir))
}

func TestWriteThroughLinks(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must.Do(t, os.Mkdir(at("far"), 0o755))
	must.Do(t, os.WriteFile(at("far/file"), nil, 0o644))
	for link, target := range map[string]string{"link": "far/file", "second": "link", "dangling": "far/new", "round": "round", "absolute": at("far/third"), "deep": "far/up", "far/up": "fourth"} {
		must.Do(t, os.Symlink(target, at(link)))
	}
	for link, file := range map[string]string{"second": "far/file", "dangling": "far/new", "absolute": "far/third", "deep": "far/fourth"} {
		must.Do(t, Write(at(link), []byte(link), 0o644))
		info, err := os.Lstat(at(link))
		expect.True(t, err == nil && info.Mode()&os.ModeSymlink != 0 && must.Read(t, at(file)) == link, "%s is %v, %s has %q; %v", link, info.Mode(), file, must.Read(t, at(file)), err)
	}
	expect.Error(t, Write(at("round"), nil, 0o644), "too many symbolic links")
	err := Write(at("far"), nil, 0o644)
	expect.True(t, errors.Is(err, errFolder), "%v", err)
}

// Anything but a regular file keeps its type.
func TestWriteToDevicesAndPipes(t *testing.T) {
	expect.NoError(t, Write(os.DevNull, []byte("x"), 0o644), "Write")
	info, err := os.Stat(os.DevNull)
	expect.True(t, err == nil && info.Mode()&os.ModeCharDevice != 0, "%s is %v, %v", os.DevNull, info.Mode(), err)
	err = Write("/dev/full", []byte("x"), 0o644)
	expect.True(t, errors.Is(err, syscall.ENOSPC) || errors.Is(err, os.ErrNotExist), "/dev/full takes a byte: %v", err)
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	must.Do(t, os.Symlink("pipe", filepath.Join(dir, "link")))
	for _, name := range []string{"pipe", "link"} {
		got := make(chan string)
		go func() {
			data, _ := os.ReadFile(pipe)
			got <- string(data)
		}()
		expect.NoError(t, Write(filepath.Join(dir, name), []byte("through"), 0o644), "Write")
		expect.Same(t, "through", <-got, "came out of the pipe")
	}
	expect.Equal(t, []string{"link", "pipe"}, names(t, dir))
	read, write, err := os.Pipe()
	must.Do(t, err)
	defer read.Close()
	defer write.Close()
	expect.NoError(t, Write("/dev/fd/"+fmt.Sprint(write.Fd()), []byte("x"), 0o644), "as the shell's >(…) has it")
}

func TestCloseGivesUp(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	must.Do(t, os.WriteFile(path, []byte("old"), 0o644))
	file := must.Get(Create(path, 0o644))(t)
	must.Get(file.WriteString("half"))(t)
	err := file.Close()
	expect.True(t, err == nil && must.Read(t, path) == "old", "%v; the file is %q", err, must.Read(t, path))
	expect.Equal(t, []string{"out"}, names(t, dir))
}

// The next write removes the temporary file of a killed process, but not one being written.
func TestStaleFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	stale, folder, other := besideName(path), besideName(path), besideName(filepath.Join(dir, "other"))
	must.Do(t, errors.Join(os.WriteFile(stale, []byte("half"), 0o644), os.MkdirAll(filepath.Join(folder, "deep"), 0o755), os.WriteFile(other, nil, 0o644)))
	writing := must.Get(Create(path, 0o644))(t)
	must.Do(t, Write(path, []byte("new"), 0o644))
	expect.Equal(t, []string{filepath.Base(other), filepath.Base(writing.Name()), "out"}, names(t, dir))
	must.Do(t, writing.Commit())
	err := writing.Close()
	expect.True(t, err == nil && must.Read(t, path) == "", "%v; the last to commit does not win: %q", err, must.Read(t, path))
}

func TestWriteAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 20 {
				expect.NoError(t, Write(path, []byte(strings.Repeat(string(rune('a'+i)), 1000)), 0o644), "Write")
			}
		})
	}
	all.Wait()
	text := must.Read(t, path)
	expect.True(t, len(text) == 1000 && strings.Trim(text, text[:1]) == "", "%d bytes of several writers", len(text))
	expect.Equal(t, []string{"out"}, names(t, dir))
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "made")
	fill := func(in string) error { return os.WriteFile(filepath.Join(in, "file"), []byte("x"), 0o644) }
	broken := errors.New("broken")
	err := Folder(path, func(in string) error { return errors.Join(fill(in), broken) })
	expect.True(t, errors.Is(err, broken), "%v", err)
	expect.Equal(t, []string{}, names(t, filepath.Dir(path)))
	must.Do(t, os.Mkdir(path, 0o755))
	must.Do(t, os.MkdirAll(filepath.Join(besideName(path), "left"), 0o755))
	must.Do(t, Folder(path, fill))
	expect.Equal(t, []string{"made"}, names(t, filepath.Dir(path)))
	expect.Error(t, Folder(path, fill), "is not empty; choose a new folder")
	expect.Error(t, Folder(filepath.Join(path, "file"), fill), "choose a new folder")
}

// TestAppender: a file goes on at a length that it had, which may be its end, and has what several writers append.
func TestAppender(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	expect.Fails(AppendAt(path, 3))(t, "a file that is not there goes on")
	length := int64(0)
	for _, more := range []string{"abc", "def", ""} {
		a := must.Get(AppendAt(path, length))(t)
		expect.Same(t, path, a.Name(), "name")
		must.Do(t, a.Append([]byte(more)))
		length = must.Get(a.Sync())(t)
		must.Do(t, a.Close())
	}
	expect.Same(t, 6, length, "length")
	expect.Failure(AppendAt(path, 7))(t, "it has 6 bytes, the checkpoint is at byte 7")
	a := must.Open(AppendAt(path, 4))(t)
	var writers sync.WaitGroup
	for range 20 {
		writers.Go(func() { expect.NoError(t, a.Append([]byte("x")), "appending") })
	}
	writers.Wait()
	expect.Result(a.Sync())(t, 24, "length")
	expect.Same(t, "abcd"+strings.Repeat("x", 20), must.Read(t, path), "content")
}

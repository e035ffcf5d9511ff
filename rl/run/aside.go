package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// newSuffix ends the name of a run's folder while an older run lies where it is
// to lie.
const newSuffix = ".new"

// resolve follows symbolic links, so that a folder linked to a bigger disk
// stays there when a run is moved aside.
func resolve(dir string) string {
	dir = filepath.Clean(dir)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// placeFor finds and frees the place of a new run: dir itself, or the folder
// beside it where dir holds a run that is worth keeping.
func placeFor(dir string) (string, error) {
	if err := finishMove(dir); err != nil {
		return "", err
	}
	at := dir
	if worthKeeping(dir) {
		lock, err := lockDir(dir) // another process may still write it
		if err != nil {
			return "", err
		}
		lock.release()
		at = dir + newSuffix
	}
	return at, clear(at)
}

// clear removes a run that left nothing worth keeping from dir.
func clear(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isRun(dir) {
		// A process killed while it created its run leaves no more than these.
		foreign := slices.DeleteFunc(entryNames(entries), func(name string) bool {
			return name == lockFile || strings.HasPrefix(name, "."+runFile)
		})
		if len(foreign) > 0 {
			return fmt.Errorf("%s holds %s and no run of %s; choose another folder or empty it", filepath.Base(dir), someOf(foreign), program)
		}
		return nil
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := removeRun(dir); err != nil {
		return fmt.Errorf("removing a run that saved nothing: %w", err)
	}
	return nil
}

// worthKeeping says whether a run in dir is finished or has a checkpoint to go
// on from.
func worthKeeping(dir string) bool {
	if !isRun(dir) {
		return false
	}
	record, err := ReadRun(dir)
	if err != nil || record.Status == StatusFinished {
		return true // what cannot be read is not ours to remove
	}
	found, err := listCheckpoints(filepath.Join(dir, checkpointsDir))
	return err != nil || slices.ContainsFunc(found, func(c checkpointEntry) bool { return !c.unfinished })
}

// Settle gives the run its place, once it has something worth keeping. A run
// that has it already stays.
func (r *Run) Settle() error {
	if r.dir == r.home {
		return nil
	}
	if err := r.shift(); err != nil {
		return fmt.Errorf("moving the run before this one aside: %w", err)
	}
	if err := os.Rename(r.dir, r.home); err != nil {
		return fmt.Errorf("giving the run its folder: %w", err)
	}
	r.lock.moved(r.home)
	r.dir = r.home
	return nil
}

// shift moves the run in home to home.1, that of home.1 to home.2 and so on. Of
// them keepRuns stay, and the last finished one in any case.
func (r *Run) shift() error {
	lock, err := lockDir(r.home)
	if err != nil {
		return err
	}
	defer lock.release()
	runs := []string{r.home}
	for n := 1; ; n++ {
		old := r.home + "." + strconv.Itoa(n)
		if _, err := os.Lstat(old); errors.Is(err, fs.ErrNotExist) {
			break
		}
		if !isRun(old) {
			return fmt.Errorf("%s, where an older run would move, is no run of %s; move it away", old, program)
		}
		runs = append(runs, old)
	}
	var kept []string
	finished := false
	for i, dir := range runs {
		record, err := ReadRun(dir)
		last := !finished && err == nil && record.Status == StatusFinished
		finished = finished || last
		if i < max(1, r.keepRuns) || last {
			kept = append(kept, dir)
		} else if err := removeRun(dir); err != nil {
			return err
		}
	}
	for i, dir := range slices.Backward(kept) {
		name := r.home + "." + strconv.Itoa(i+1)
		if dir == name {
			continue
		}
		if err := os.Rename(dir, name); err != nil {
			return err
		}
		if i == 0 {
			lock.moved(name)
		}
	}
	return nil
}

// finishMove ends what a process began that was killed between the two moves of
// Settle.
func finishMove(dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) || !worthKeeping(dir+newSuffix) {
		return nil
	}
	return os.Rename(dir+newSuffix, dir)
}

// isRun tells whether dir was written by this program, in any of its versions.
func isRun(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, runFile))
	var mark struct {
		Program string `json:"program"`
	}
	return err == nil && json.Unmarshal(data, &mark) == nil && mark.Program == program
}

// removeRun deletes the folder with run.json last: a deletion cut short leaves
// a folder that can still be recognised.
func removeRun(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == runFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

func entryNames(entries []fs.DirEntry) []string {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func someOf(names []string) string {
	const shown = 3
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

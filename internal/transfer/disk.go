package transfer

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Room returns an error if the disk of dir has less than the given number of bytes free. advice names the setting that
// moves dir to another disk.
func Room(dir string, bytes int64, advice string) error {
	free, err := Free(dir)
	if err != nil {
		return nil // writing will show
	}
	if free < bytes {
		return fmt.Errorf("the disk of %s has %d MB free, the download needs %d MB; free some space or set %s to another disk", dir, free/1e6, bytes/1e6, advice)
	}
	return nil
}

// Free is the number of bytes that the disk of dir has free for this user.
func Free(dir string) (int64, error) {
	var disk syscall.Statfs_t
	err := syscall.Statfs(dir, &disk)
	return int64(disk.Bavail) * int64(disk.Bsize), err
}

// Explain adds to an error of writing in dir what the user can do about it.
func Explain(err error, dir, advice string) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk of %s is full; free some space or set %s to another disk, then run again: %w", dir, advice, err)
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s cannot be written; set %s to a folder that you can write: %w", dir, advice, err)
	}
	return err
}

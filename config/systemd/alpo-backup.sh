#!/bin/sh
# alpo-backup.sh DIR DAYS: make a backup in DIR, check it, then delete those older than DAYS days, but never the newest.
# What goes wrong is on stderr, ends with another exit code than 0, and deletes nothing that was there.
set -eu

directory=${1:?"usage: alpo-backup.sh DIR DAYS"}
days=${2:?"usage: alpo-backup.sh DIR DAYS"}
case $days in *[!0-9]*) echo "alpo-backup.sh: DAYS is a whole number, not $days" >&2; exit 2;; esac
umask 077

new=$directory/alpo-$(date -u +%Y%m%dT%H%M%SZ).alpo
alpo backup "$new"
# A backup that cannot be restored is none, and must not replace those that can be.
if ! alpo log verify "$new"; then
    mv "$new" "$new.unsound"
    exit 1
fi
find "$directory" -maxdepth 1 -type f -name 'alpo-*.alpo*' -mtime "+$days" ! -path "$new" -delete

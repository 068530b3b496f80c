#!/usr/bin/env bash
# Installs what the tests of foreign implementations need beyond Python: node and tshark (Debian packages) and the Kaitai
# Struct compiler (npm), the latter into the folder that is given. `make test-full` runs it. It fails rather than skips.
set -euo pipefail
folder=${1:?error: usage: install.sh FOLDER}
compiler=kaitai-struct-compiler
version=0.11.0

packages=()
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || [ -e "$folder/node_modules/$compiler" ] || packages+=(npm)
command -v tshark >/dev/null || packages+=(tshark)
if [ ${#packages[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "error: install ${packages[*]} first, or run this as root on Debian" >&2
        exit 1
    fi
    echo "installing ${packages[*]} ..."
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o Acquire::Retries=5 update -qq
    apt-get -o Acquire::Retries=5 install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
if [ ! -e "$folder/node_modules/$compiler" ]; then
    echo "installing $compiler $version into $folder ..."
    mkdir -p "$folder"
    npm install --fetch-retries 5 --silent --no-audit --no-fund --prefix "$folder" "$compiler@$version"
fi

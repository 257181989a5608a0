#include "lib/base/hash.h"
#include "lib/base/alloc.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

/* The memory that libcrypto allocates at its first use: 290 KB. */
enum { STATE_BYTES = 1 << 19 };

struct kv_hash {
    EVP_MD_CTX *md;
};

struct kv_hash *kv_hash_new(void)
{
    struct kv_hash *h = kv_alloc(1, sizeof(*h));

    h->md = EVP_MD_CTX_new();
    if (!h->md || !EVP_DigestInit_ex(h->md, EVP_sha256(), NULL))
        kv_memory_end(1, STATE_BYTES);
    return h;
}

void kv_hash_add(struct kv_hash *h, const void *data, size_t n)
{
    if (n && !EVP_DigestUpdate(h->md, data, n))
        abort();
}

void kv_hash_end(struct kv_hash *h, char hex[KV_HASH_CHARS])
{
    unsigned char sum[EVP_MAX_MD_SIZE];

    if (!EVP_DigestFinal_ex(h->md, sum, NULL))
        abort();
    EVP_MD_CTX_free(h->md);
    free(h);
    for (size_t i = 0; i < 8; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}

void kv_hash_bytes(const void *data, size_t n, char hex[KV_HASH_CHARS])
{
    struct kv_hash *h = kv_hash_new();

    kv_hash_add(h, data, n);
    kv_hash_end(h, hex);
}

/* A fixed key: any 16 bytes that never change.  The key is no secret, so anyone
 * can make two leaves with the same code. */
static const char key[16] = "kvtools identity";

void kv_hash_leaf(const void *leaf, size_t n, uint8_t code[KV_LEAF_CODE])
{
    unsigned char iv[12] = {0};
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, iv, sizeof(iv)),
        OSSL_PARAM_construct_end()};
    size_t bytes;

    if (!EVP_Q_mac(NULL, OSSL_MAC_NAME_GMAC, NULL, "AES-128-GCM", params, key,
                   sizeof(key), leaf, n, code, KV_LEAF_CODE, &bytes))
        kv_memory_end(1, STATE_BYTES);
}

/* --columns help. */
#ifndef KV_COLUMNS_ABOUT_H
#define KV_COLUMNS_ABOUT_H

/* Prints a line for each column, with its unit and meaning, under the table's
 * name.  columns ends with NULL. */
void kv_columns_about(const char *table, const char *const *columns);

#endif
